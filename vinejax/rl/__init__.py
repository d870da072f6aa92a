"""The mathematics of the algorithm: pure functions of arrays, which never see a model."""
