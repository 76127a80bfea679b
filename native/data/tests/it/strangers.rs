//! Files that nobody in his senses would write: they are refused, and neither panic nor memory that is not there ends the
//! process.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array};
use flambeau_data::{
    BatchReader, DType, DataError, DataFile, DatasetSpec, Manifest, ReaderOptions, SampleOrder,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::{
    ColumnChunkMetaDataBuilder, ParquetMetaDataReader, ParquetMetaDataWriter,
    RowGroupMetaDataBuilder,
};
use proptest::prelude::*;

use crate::fixtures::{
    numbered, order_config, read_all, single, small_pages, store, tensor, write, write_with,
};
use crate::mutation::{cases, mutated};

fn doubles(num: usize) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(
        (0..num).map(|row| row as f64),
    ))
}

/// Replaces a file's footer.
fn forge(
    uri: &str,
    group: impl Fn(RowGroupMetaDataBuilder) -> RowGroupMetaDataBuilder,
    column: impl Fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder,
) {
    let bytes = bytes::Bytes::from(std::fs::read(uri).unwrap());
    let metadata = ParquetMetaDataReader::new()
        .parse_and_finish(&bytes)
        .unwrap();
    let groups = metadata.row_groups().iter().map(|found| {
        let columns = found.columns().iter();
        let columns = columns.map(|chunk| column(chunk.clone().into_builder()).build().unwrap());
        let builder = found.clone().into_builder();
        let builder = builder.set_column_metadata(columns.collect());
        group(builder).build().unwrap()
    });
    let forged = metadata
        .clone()
        .into_builder()
        .set_row_groups(groups.collect());
    let footer_length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap());
    let mut out = bytes[..bytes.len() - 8 - footer_length as usize].to_vec();
    ParquetMetaDataWriter::new(&mut out, &forged.build())
        .finish()
        .unwrap();
    std::fs::write(uri, out).unwrap();
}

#[test]
fn columns_longer_than_the_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    // As much as no machine has, and as much as no number holds.
    for length in [1i64 << 46, i64::MAX] {
        let uri = write(directory.path(), "a.parquet", &[("c", doubles(8))], 4);
        forge(
            &uri,
            |group| group,
            |column| column.set_total_compressed_size(length),
        );
        let error = read_all(std::slice::from_ref(&uri), &single("c", DType::Float64)).unwrap_err();
        assert!(error.to_string().contains(&uri), "{error}");
    }
}

#[test]
fn more_rows_than_a_row_group_can_have_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for num_rows in [1i64 << 50, i64::MAX] {
        let uri = write(directory.path(), "a.parquet", &[("c", doubles(12))], 4);
        forge(&uri, |group| group.set_num_rows(num_rows), |column| column);
        let error = read_all(std::slice::from_ref(&uri), &single("c", DType::Float64)).unwrap_err();
        assert!(
            matches!(&error, DataError::Parquet { uri: found, .. } if *found == uri),
            "{error}"
        );
        assert!(error.to_string().contains(&num_rows.to_string()), "{error}");
    }
}

/// Four numbers in a column `x`, as pyarrow 26 writes them with `write_page_checksum=True`, no compression and no dictionary. The
/// crate's own writer has no checksums.
const CHECKED: &str = "\
    504152311500152c152c15a7bab08d0e1c15081500150615061c0000000200000008010000803f00002040000040c0000080\
    401504192c35001806736368656d6115020015082502180178001608191c191c26001c150819250600191801781500160816\
    5e165e2608491c150015001502003c290619260008000000165e16082608165e002820706172717565742d6370702d617272\
    6f772076657273696f6e2032362e302e31191c1c0000007a00000050415231";

#[test]
fn a_flipped_byte_in_a_page_with_a_checksum_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let uri = path.to_str().unwrap().to_owned();
    let mut bytes: Vec<u8> = (0..CHECKED.len() / 2)
        .map(|at| u8::from_str_radix(&CHECKED[2 * at..][..2], 16).unwrap())
        .collect();
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_all(std::slice::from_ref(&uri), &single("x", DType::Float32))
    };
    read(&bytes).unwrap();
    let number = 1f32.to_le_bytes();
    let at = bytes.windows(4).position(|bytes| bytes == number).unwrap();
    bytes[at] ^= 1;
    let error = read(&bytes).unwrap_err();
    assert!(
        matches!(&error, DataError::Parquet { uri: found, .. } if *found == uri),
        "{error}"
    );
    assert!(error.to_string().contains("CRC"), "{error}");
}

/// Small files of each kind of page.
fn corpus() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("c", doubles(30)),
        (
            "d",
            Arc::new(Int64Array::from_iter_values((0..30).map(|row| row % 4))),
        ),
    ];
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    codecs
        .into_iter()
        .map(|codec| {
            let properties = small_pages(20)
                .set_compression(codec)
                .set_column_dictionary_enabled("c".into(), false)
                .build();
            let uri = write_with(directory.path(), "a.parquet", &columns, properties);
            std::fs::read(uri).unwrap()
        })
        .collect()
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn almost_parquet_is_read_or_refused(bytes in mutated(corpus())) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.parquet");
        std::fs::write(&path, bytes).unwrap();
        let spec = DatasetSpec {
            inputs: vec![tensor("x", &["c", "d"], DType::Float64)],
            labels: vec![],
            weight: None,
            raw_columns: vec![],
        };
        let uri = path.to_str().unwrap().into();
        let _ = Manifest::read(&store(), &[DataFile::Whole(uri)], &spec).and_then(read);
    }
}

/// Reads all batches of a manifest's shards, in little memory.
fn read(manifest: Manifest) -> Result<(), DataError> {
    let manifest = Arc::new(manifest);
    let order = Arc::new(SampleOrder::new(&manifest, order_config(2, 5))?);
    let options = ReaderOptions {
        memory_budget: 1 << 20,
        ..ReaderOptions::default()
    };
    let mut reader = BatchReader::new(store(), manifest, order, 0, 1, options)?;
    reader.start(0, 0)?;
    while reader.next()?.is_some() {}
    Ok(())
}

#[test]
fn an_almost_right_manifest_is_used_or_refused() {
    let data = numbered(&[30, 20], 10);
    let good = serde_json::to_vec(&*data.manifest).unwrap();
    assert_eq!(Manifest::from_json(&good).unwrap(), *data.manifest);
    let read = |bytes: &[u8]| read(Manifest::from_json(bytes)?);
    read(&good).unwrap();
    for (from, to) in [
        // A tensor of a column that is not there, or of no known shape, rows that don't add up, more rows than there can be.
        ("\"columns\":[\"id\"]", "\"columns\":[\"other\"]"),
        (
            "\"dtype\":\"int64\",\"shape\":[]",
            "\"dtype\":\"int64\",\"shape\":null",
        ),
        ("\"numRows\":50", "\"numRows\":51"),
        ("{\"numRows\":10", "{\"numRows\":18446744073709551615"),
    ] {
        let text = String::from_utf8(good.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        let error = read(text.replace(from, to).as_bytes()).unwrap_err();
        assert!(
            matches!(error, DataError::InvalidManifest { .. }),
            "{error}"
        );
    }
    let mut runner = proptest::test_runner::TestRunner::new(cases(200));
    let property = |bytes: Vec<u8>| {
        let _ = read(&bytes);
        Ok(())
    };
    runner.run(&mutated(vec![good]), property).unwrap();
}
