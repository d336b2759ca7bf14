"""What the offline API and the command line join: opened models, outputs as they grow."""
