"""Jobs of `alpo-pipeline`: what each task does, and how results are combined; only `fan` uses Spark."""
