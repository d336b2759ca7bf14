"""Load generator and reports: `run_bench(BenchOptions)`."""
