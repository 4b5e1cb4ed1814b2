"""The sections of docs/evaluation.md: each from what is stored to Markdown and a plot."""
