//! Every refusal has its code, changes nothing, and has a twin that is accepted.

use slm_format::{Coded, ErrorClass};
use slm_kv::{KvCache, KvGeometry, KvRows};
use slm_manifest::{ExecutionId, KvType};

fn execution() -> ExecutionId {
    ExecutionId::of_canonical(b"mine")
}

fn cache(kv_type: KvType) -> KvCache {
    KvCache::new(execution(), KvGeometry::new(vec![2, 4], 4, 6).unwrap(), kv_type).unwrap()
}

#[test]
fn another_execution_is_refused() {
    let mut cache = cache(KvType::F16);
    let other = ExecutionId::of_canonical(b"another stack");
    let error = cache.append(other, 0, &[1.0, 2.0], &[3.0, 4.0]).unwrap_err();
    assert_eq!((error.code(), error.class()), ("kv-wrong-execution", ErrorClass::Refused));
    assert_eq!(cache.bytes_reserved(), 0);
    assert!(cache.spans(0, 0..1).is_err());
    cache.append(execution(), 0, &[1.0, 2.0], &[3.0, 4.0]).unwrap();
}

#[test]
fn a_full_cache_is_refused_before_anything_is_written() {
    let mut cache = cache(KvType::F32);
    let error = cache.append(execution(), 0, &[1.0; 14], &[1.0; 14]).unwrap_err();
    assert_eq!((error.code(), error.class()), ("kv-full", ErrorClass::Budget));
    assert_eq!(cache.bytes_reserved(), 0);
    assert_eq!(cache.reserve(7).unwrap_err().code(), "kv-full");
    assert_eq!(cache.bytes_reserved(), 0);
    cache.reserve(6).unwrap();
    cache.append(execution(), 0, &[1.0; 12], &[1.0; 12]).unwrap();
    cache.append(execution(), 1, &[1.0; 24], &[1.0; 24]).unwrap();
    cache.commit(6).unwrap();
    assert_eq!(cache.bytes_reserved(), cache.geometry().bytes(KvType::F32));
    assert_eq!(cache.append(execution(), 0, &[1.0; 2], &[1.0; 2]).unwrap_err().code(), "kv-full");
    cache.truncate(4);
    assert_eq!(cache.bytes_reserved(), 4 * 12 * 4);
}

#[test]
fn rows_that_are_no_rows_are_refused() {
    let mut cache = cache(KvType::F32);
    assert_eq!(cache.append(execution(), 1, &[1.0; 3], &[1.0; 3]).unwrap_err().code(), "kv-shape");
    assert_eq!(cache.append(execution(), 1, &[1.0; 4], &[1.0; 8]).unwrap_err().code(), "kv-shape");
    assert_eq!(cache.append(execution(), 2, &[1.0; 4], &[1.0; 4]).unwrap_err().code(), "kv-layer");
    assert_eq!(cache.spans(2, 0..0).unwrap_err().code(), "kv-layer");
    cache.append(execution(), 1, &[1.0; 4], &[1.0; 4]).unwrap();
}

#[test]
fn a_value_that_is_not_finite_in_the_cache_names_its_place() {
    // 65504 is the largest f16; 65519.996 still rounds to it and 65520 no longer.
    for (kv_type, good, bad) in [
        (KvType::F16, 65519.996, 65520.0),
        (KvType::F16, -65519.996, f32::NEG_INFINITY),
        (KvType::F16, 1.0, f32::NAN),
        (KvType::F32, f32::MAX, f32::INFINITY),
        (KvType::F32, 65520.0, f32::NAN),
    ] {
        let mut cache = cache(kv_type);
        let mut v = [1.0; 24];
        v[21] = bad;
        let error = cache.append(execution(), 1, &[1.0; 24], &v).unwrap_err();
        assert_eq!(error.code(), "kv-non-finite");
        assert!(
            error.to_string().starts_with("v of layer 1, position 5, channel 1 is "),
            "{error}"
        );
        assert!(cache.spans(1, 0..1).is_err(), "a refused row became visible");
        v[21] = good;
        cache.append(execution(), 1, &[1.0; 24], &v).unwrap();
    }
}

#[test]
fn a_commit_needs_every_layer() {
    let mut cache = cache(KvType::F32);
    cache.append(execution(), 0, &[1.0; 4], &[1.0; 4]).unwrap();
    let error = cache.commit(2).unwrap_err();
    assert_eq!(error.code(), "kv-uneven");
    assert_eq!(cache.len(), 0);
    cache.append(execution(), 1, &[1.0; 8], &[1.0; 8]).unwrap();
    assert_eq!(cache.commit(1).unwrap_err().code(), "kv-uneven");
    cache.commit(2).unwrap();
    assert_eq!(cache.len(), 2);
}

#[test]
fn f16_rounds_ties_to_even() {
    let mut cache = cache(KvType::F16);
    // 1 + 2^-11 and 1 + 3 * 2^-11 lie halfway between neighbours; 2^-25 lies halfway between zero and the least subnormal.
    let k = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0];
    let v = [1.0 / 33_554_432.0, -3.0 / 33_554_432.0];
    cache.append(execution(), 0, &k, &v).unwrap();
    let span = cache.spans(0, 0..1).unwrap().next().unwrap();
    assert_eq!(span.k, KvRows::F16(&[0x3c00, 0x3c02]));
    assert_eq!(span.v, KvRows::F16(&[0x0000, 0x8002]));
}
