//! Files in a watched directory that are no regular files.
