"""The mathematics of the algorithm: pure functions of arrays that never see a model."""
