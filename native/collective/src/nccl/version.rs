//! Releases of NCCL.

use std::fmt;

/// A release of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// 2, so far.
    pub major: u32,
    /// Grows with each release.
    pub minor: u32,
    /// Grows with each correction.
    pub patch: u32,
}

impl NcclVersion {
    /// From `NCCL_VERSION_CODE`, which gave the minor number one digit up to 2.8.
    pub(crate) fn from_code(code: u32) -> Self {
        let thousands = if code < 10_000 { 1_000 } else { 10_000 };
        NcclVersion {
            major: code / thousands,
            minor: code % thousands / 100,
            patch: code % 100,
        }
    }

    /// `NCCL_VERSION_CODE` of a release after 2.8.
    pub(crate) const fn code(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NCCL_VERSION_CODE` of releases' own headers.
    #[test]
    fn versions_read_as_their_headers_say() {
        for (code, text) in [(2708, "2.7.8"), (21_501, "2.15.1"), (22_907, "2.29.7")] {
            assert_eq!(NcclVersion::from_code(code).to_string(), text);
        }
        assert_eq!(NcclVersion::from_code(22_907).code(), 22_907);
    }
}
