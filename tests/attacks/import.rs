//! Documents that are imported: names, sizes and times.
