"""What notebooks need around the methods: runs, results, comparisons and figures."""
