//! Reference forward pass, vectors and the embedded tiny model.
