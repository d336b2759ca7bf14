"""The real scheduler under simulated time; time comes from costs fitted to measured steps."""
