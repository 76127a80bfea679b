//! From a URI to where its file lies.

use std::path::{Path, PathBuf};

use object_store::path::Path as ObjectPath;

use crate::error::DataError;

/// Where a URI points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A path of this machine: a disk, or a mount such as `/Volumes`.
    Local(PathBuf),
    /// An object.
    Remote {
        scheme: Scheme,
        /// Scheme and authority, which name the bucket or container: `s3://bucket`.
        base: String,
        /// The bucket's or container's name alone.
        bucket: String,
        path: ObjectPath,
    },
}

/// The object stores there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Azure,
    Gcs,
}

impl Location {
    /// Reads a URI. A plain path is taken as it is; the path of anything with a scheme is percent-decoded, as Spark's
    /// `inputFiles()` needs. `dbfs:/x` is `/dbfs/x`, but `dbfs:/Volumes/x` is `/Volumes/x`.
    pub(crate) fn parse(uri: &str) -> Result<Self, DataError> {
        let Some((scheme, rest)) = split_scheme(uri) else {
            return match uri {
                "" => Err(invalid(uri, "it is empty")),
                path => Ok(Location::Local(path.into())),
            };
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let path = percent_decode(path).ok_or_else(|| invalid(uri, "its escapes are not UTF-8"))?;
        let local = |path: &str| match (authority, path.starts_with('/')) {
            ("" | "localhost", true) => Ok(PathBuf::from(path)),
            ("" | "localhost", false) => Err(invalid(uri, "its path is not absolute")),
            _ => Err(invalid(uri, "it names another host")),
        };
        let remote = |scheme| {
            if authority.is_empty() {
                return Err(invalid(uri, "it names no bucket or container"));
            }
            let path = ObjectPath::parse(path.trim_matches('/'))
                .map_err(|error| invalid(uri, &error.to_string()))?;
            let base = format!(
                "{}://{authority}",
                uri[..uri.len() - rest.len() - 1].to_ascii_lowercase()
            );
            Ok(Location::Remote {
                scheme,
                base,
                bucket: authority.to_owned(),
                path,
            })
        };
        match scheme.as_str() {
            "file" => Ok(Location::Local(local(&path)?)),
            "dbfs" => {
                let path = local(&path)?;
                if path.starts_with("/Volumes") {
                    return Ok(Location::Local(path));
                }
                Ok(Location::Local(
                    Path::new("/dbfs").join(path.strip_prefix("/").unwrap_or(&path)),
                ))
            }
            "s3" | "s3a" => remote(Scheme::S3),
            "abfs" | "abfss" => remote(Scheme::Azure),
            "gs" => remote(Scheme::Gcs),
            _ => Err(DataError::UnknownScheme {
                scheme,
                uri: uri.to_owned(),
            }),
        }
    }
}

fn invalid(uri: &str, reason: &str) -> DataError {
    DataError::InvalidUri {
        uri: uri.to_owned(),
        reason: reason.to_owned(),
    }
}

/// The scheme in lower case and what follows its colon; `None` for plain paths.
fn split_scheme(uri: &str) -> Option<(String, &str)> {
    let (scheme, rest) = uri.split_once(':')?;
    let mut letters = scheme.chars();
    let is_scheme = letters.next()?.is_ascii_alphabetic()
        && letters.all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then(|| (scheme.to_ascii_lowercase(), rest))
}

/// Replaces `%XX`; what is no such escape stays. `None` where the result is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escape = (bytes[index] == b'%')
            .then(|| bytes.get(index + 1..index + 3))
            .flatten()
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        decoded.push(escape.unwrap_or(bytes[index]));
        index += if escape.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).ok()
}

/// The URI of a file below a directory, in the directory's own form: escaped unless that is a plain path.
pub(crate) fn child_uri(directory: &str, relative: &str) -> String {
    let directory = directory.trim_end_matches('/');
    if split_scheme(directory).is_none() {
        return format!("{directory}/{relative}");
    }
    let mut uri = format!("{directory}/");
    for byte in relative.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~=:@!$&'()*,;+".contains(&byte) {
            uri.push(byte as char);
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn local(uri: &str) -> String {
        match Location::parse(uri).unwrap() {
            Location::Local(path) => path.to_str().unwrap().to_owned(),
            remote => panic!("{remote:?}"),
        }
    }

    #[test]
    fn local_forms() {
        assert_eq!(
            local("/a/100%25 b"),
            "/a/100%25 b",
            "plain paths are not decoded"
        );
        assert_eq!(local("file:/a/x%20y/p%3D1"), "/a/x y/p=1");
        assert_eq!(local("file:///a/%C3%BC%zz"), "/a/ü%zz");
        assert_eq!(local("FILE://localhost/a"), "/a");
        assert_eq!(local("dbfs:/tmp/a%20b"), "/dbfs/tmp/a b");
        assert_eq!(local("dbfs:///tmp/a"), "/dbfs/tmp/a");
        assert_eq!(local("dbfs:/Volumes/c/s/v"), "/Volumes/c/s/v");
        assert_eq!(local("relative/path"), "relative/path");
    }

    #[test]
    fn remote_forms() {
        for (uri, base, path) in [
            ("s3://bucket/a/b%20c", "s3://bucket", "a/b c"),
            ("s3a://bucket", "s3a://bucket", ""),
            ("gs://b/k%2525/", "gs://b", "k%25"),
            (
                "abfss://c@acc.dfs.core.windows.net/x",
                "abfss://c@acc.dfs.core.windows.net",
                "x",
            ),
        ] {
            let Location::Remote {
                base: found_base,
                path: found,
                ..
            } = Location::parse(uri).unwrap()
            else {
                panic!("{uri} is remote")
            };
            assert_eq!((found_base.as_str(), found.as_ref()), (base, path));
        }
    }

    #[test]
    fn refused_forms() {
        for uri in ["hdfs://nn/a", "http://x/a", "wasbs://c@a/x", "jdbc:x"] {
            let error = Location::parse(uri).unwrap_err();
            let scheme = uri.split(':').next().unwrap();
            assert!(
                matches!(&error, DataError::UnknownScheme { scheme: s, .. } if s == scheme),
                "{error}"
            );
            assert!(error.to_string().contains(scheme) && error.to_string().contains("abfss"));
        }
        for uri in [
            "",
            "file://host/a",
            "file:a",
            "s3:///a",
            "s3://b/a/../c",
            "file:/%ff",
        ] {
            assert!(
                matches!(Location::parse(uri), Err(DataError::InvalidUri { .. })),
                "{uri}"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_is_given_is_read_or_refused(uri: String, scheme in "file|dbfs|s3a?|abfss?|gs", rest: String) {
            for uri in [uri, format!("{scheme}:{rest}"), format!("{scheme}://{rest}")] {
                if let Err(error) = Location::parse(&uri) {
                    let is_refusal = matches!(
                        error,
                        DataError::InvalidUri { .. } | DataError::UnknownScheme { .. }
                    );
                    prop_assert!(is_refusal, "{uri:?}: {error}");
                }
            }
        }

        /// The names are those that a file can have, which a URI may have to escape.
        #[test]
        fn a_child_lies_in_its_directory(names in prop::collection::vec("[^/\\x00]{1,8}", 1..4)) {
            prop_assume!(names.iter().all(|name| name != "." && name != ".."));
            let relative = names.join("/");
            for directory in ["/d x", "file:///d%20x/", "file:/d%20x"] {
                prop_assert_eq!(local(&child_uri(directory, &relative)), format!("/d x/{}", &relative));
            }
            let uri = child_uri("s3://bucket/d", &relative);
            if let Ok(Location::Remote { base, path, .. }) = Location::parse(&uri) {
                prop_assert_eq!(base.as_str(), "s3://bucket");
                prop_assert_eq!(path.as_ref(), format!("d/{}", &relative));
            }
        }
    }

    #[test]
    fn children_parse_back() {
        for directory in ["file:///d%20x/", "/d x"] {
            assert_eq!(
                local(&child_uri(directory, "k=a%2Fb/ü 1.parquet")),
                "/d x/k=a%2Fb/ü 1.parquet"
            );
        }
    }
}
