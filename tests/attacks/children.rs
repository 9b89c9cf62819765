//! Children: their input, their death with the host, and what they can read.
