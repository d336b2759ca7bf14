"""What may run or wait: bookings, estimates, shares by tenant."""
