"""Many machines behind one door: targets, what is known of them, and where a request goes."""
