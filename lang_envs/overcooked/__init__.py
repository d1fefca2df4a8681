"""A kitchen in which one cook chops, assembles and delivers salads."""
