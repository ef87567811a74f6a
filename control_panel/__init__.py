"""ipywidgets: a model without widgets, and thin views over it. Not built yet."""
