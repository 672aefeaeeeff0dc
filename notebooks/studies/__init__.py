"""What single notebooks need beside the package: races, rivals, tables, links of a lab."""
