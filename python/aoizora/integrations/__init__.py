"""How a plan reaches serving stacks."""
