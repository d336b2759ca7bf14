"""Brook, the model that Tidemill ships: its data, training, companions and evaluation."""
