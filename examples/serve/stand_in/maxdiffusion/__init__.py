"""Stands in for MaxDiffusion where it is not installed, to show what reaches its entry point."""
