"""Web pages of the control plane: show and steer a run; never on the path of data or weights."""
