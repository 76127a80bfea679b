//! A small S3 that a test serves on the loopback interface.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What is asked of the server's state.
pub type Condition = Box<dyn Fn(&Bucket) -> bool + Send + Sync>;

/// What the server holds and what it was asked.
#[derive(Default)]
pub struct Bucket {
    pub objects: Mutex<BTreeMap<String, Vec<u8>>>,
    pub parts: Mutex<BTreeMap<u32, Vec<u8>>>,
    pub requests: Mutex<Vec<String>>,
    /// How much longer requests take whose method is this one and whose key contains that.
    pub slow: Option<(&'static str, &'static str, Duration)>,
    /// What ends that before.
    pub is_slow_enough: Option<Condition>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

/// Serves `bucket` until the process ends, and gives a store's options for asking it.
pub fn serve(bucket: &Arc<Bucket>) -> HashMap<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let bucket = bucket.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let bucket = bucket.clone();
            std::thread::spawn(move || answer_all(&bucket, connection));
        }
    });
    let options = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_skip_signature", "true"),
        ("aws_region", "us-east-1"),
    ];
    options
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn answer_all(bucket: &Bucket, connection: TcpStream) {
    let mut reader = BufReader::new(connection);
    while let Some(request) = read_request(&mut reader) {
        bucket.requests.lock().unwrap().push(format!(
            "{} {}?{}",
            request.method, request.path, request.query
        ));
        if let Some((method, part, time)) = bucket.slow
            && request.method == method
            && request.path.contains(part)
        {
            let began = Instant::now();
            let is_enough = || bucket.is_slow_enough.as_ref().is_some_and(|is| is(bucket));
            while began.elapsed() < time && !is_enough() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let (status, headers, body) = answer(bucket, &request);
        let length = if request.method == "HEAD" {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let head = format!("HTTP/1.1 {status}\r\n{length}{headers}\r\n");
        let connection = reader.get_mut();
        let sent = connection
            .write_all(head.as_bytes())
            .and_then(|()| connection.write_all(&body));
        if sent.is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (decoded(path), decoded(query));
    let (mut range, mut length) = (None, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                range = Some((first.parse().ok()?, last.parse().ok()?));
            }
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        query,
        range,
        body,
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = if byte == b'%' {
            rest.by_ref().take(2).collect::<Vec<_>>()
        } else {
            Vec::new()
        };
        let escaped = std::str::from_utf8(&digits)
            .ok()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(byte));
    }
    String::from_utf8(bytes).unwrap()
}

fn answer(bucket: &Bucket, request: &Request) -> (&'static str, String, Vec<u8>) {
    let xml = |body: String| {
        (
            "200 OK",
            "Content-Type: application/xml\r\n".to_owned(),
            body.into_bytes(),
        )
    };
    let etag = || "ETag: \"tag\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n".to_owned();
    let query: HashMap<&str, &str> = request
        .query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    let mut objects = bucket.objects.lock().unwrap();
    let key = request
        .path
        .strip_prefix("/bucket")
        .unwrap_or_default()
        .trim_start_matches('/')
        .to_owned();
    match request.method.as_str() {
        _ if key.starts_with("forbidden") => ("403 Forbidden", String::new(), b"<Error>no</Error>".to_vec()),
        "GET" if key.is_empty() => {
            let prefix = query.get("prefix").copied().unwrap_or_default();
            let delimiter = query.get("delimiter").copied().unwrap_or("\n");
            let mut found = BTreeSet::new();
            for (key, bytes) in objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
                let length = bytes.len();
                found.insert(match key[prefix.len()..].split_once(delimiter) {
                    Some((name, _)) => format!("<CommonPrefixes><Prefix>{prefix}{name}{delimiter}</Prefix></CommonPrefixes>"),
                    None => format!(
                        "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>\
                         <ETag>tag</ETag><Size>{length}</Size></Contents>"
                    ),
                });
            }
            xml(format!("<ListBucketResult>{}</ListBucketResult>", found.into_iter().collect::<String>()))
        }
        "GET" | "HEAD" => match (objects.get(&key), request.range) {
            (None, _) => ("404 Not Found", "Content-Length: 0\r\n".repeat(usize::from(request.method == "HEAD")), vec![]),
            (Some(bytes), Some((first, last))) => {
                let last = last.min(bytes.len() - 1);
                let range = format!("Content-Range: bytes {first}-{last}/{}\r\n{}", bytes.len(), etag());
                ("206 Partial Content", range, bytes[first..=last].to_vec())
            }
            (Some(bytes), None) if request.method == "HEAD" => {
                ("200 OK", format!("Content-Length: {}\r\n{}", bytes.len(), etag()), vec![])
            }
            (Some(bytes), None) => ("200 OK", etag(), bytes.clone()),
        },
        "PUT" => {
            match query.get("partNumber") {
                Some(number) => {
                    bucket.parts.lock().unwrap().insert(number.parse().unwrap(), request.body.clone());
                }
                None => {
                    objects.insert(key, request.body.clone());
                }
            }
            ("200 OK", etag(), vec![])
        }
        "POST" if query.contains_key("uploads") => xml(
            "<InitiateMultipartUploadResult><UploadId>upload</UploadId></InitiateMultipartUploadResult>".into(),
        ),
        "POST" if query.contains_key("uploadId") => {
            let parts = std::mem::take(&mut *bucket.parts.lock().unwrap());
            objects.insert(key, parts.into_values().flatten().collect());
            xml("<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>".into())
        }
        "POST" => {
            let body = String::from_utf8(request.body.clone()).unwrap();
            let mut deleted = String::new();
            for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                objects.remove(key);
                deleted += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            xml(format!("<DeleteResult>{deleted}</DeleteResult>"))
        }
        _ => {
            objects.remove(&key);
            ("204 No Content", String::new(), vec![])
        }
    }
}
