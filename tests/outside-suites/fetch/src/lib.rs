//! Nothing is built: only the sources of the dependencies are needed.
