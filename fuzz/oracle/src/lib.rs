//! Generators and oracles of the fuzz targets.
