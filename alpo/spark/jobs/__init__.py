"""The jobs of `alpo-pipeline`: what each task does and how results are put together; only `fan` knows Spark."""
