//! Percent-encoding of the texts that stand in addresses, forms and headers.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but the letters, digits and marks that RFC 3986 calls unreserved.
pub(crate) const URL_RESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a text as one segment of a path, or as one value of a query or a form.
pub(crate) fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, URL_RESERVED).to_string()
}
