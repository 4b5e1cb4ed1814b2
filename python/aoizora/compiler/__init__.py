"""The queue of JAX worker processes that asks the real compiler, deviceless. Importing it imports no jax."""

from aoizora.compiler.queue import WorkerQueue

__all__ = ["WorkerQueue"]
