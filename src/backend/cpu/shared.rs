//! A buffer that several threads work on at once, each on its own part.
//!
//! The borrow checker cannot see that the order of work keeps parts apart, so handing them out is unsafe, and every use
//! says which rule of `turns` it rests on. Nothing else in the backend shares memory that is written.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;

use super::large_pages;

/// Numbers of which different threads own different ranges.
#[derive(Default)]
pub(super) struct SharedBuffer<T> {
    data: Vec<UnsafeCell<T>>,
}

// SAFETY: access from several threads goes through `get` and `get_mut`, whose callers keep writers to themselves.
unsafe impl<T: Send + Sync> Sync for SharedBuffer<T> {}

impl<T: Copy + Default> SharedBuffer<T> {
    /// Makes room for `len` numbers. What was there is not cleared.
    pub fn prepare(&mut self, len: usize) {
        if self.data.capacity() < len {
            self.data = large_pages::reserved(len);
        }
        self.data.resize_with(len, || UnsafeCell::new(T::default()));
    }

    /// Part of the buffer, to read.
    ///
    /// # Safety
    /// Nobody writes to the range while the slice lives.
    pub unsafe fn get(&self, range: Range<usize>) -> &[T] {
        let part = &self.data[range];
        // SAFETY: `UnsafeCell<T>` is laid out as `T`; the caller's promise makes the shared reference sound.
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast::<T>(), part.len()) }
    }

    /// Part of the buffer, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "that is what this type is for")]
    pub unsafe fn get_mut(&self, range: Range<usize>) -> &mut [T] {
        let part = &self.data[range];
        // SAFETY: the interior of `UnsafeCell` may be written through a shared reference; the caller's promise makes
        // the exclusive reference sound.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len()) }
    }
}

/// A slice that was borrowed mutably, and of which different threads own different ranges.
pub(super) struct SharedSlice<'a, T> {
    data: &'a [UnsafeCell<T>],
}

// SAFETY: numbers are reached through `get` and `get_mut` alone, whose callers keep writers to themselves.
unsafe impl<T: Send + Sync> Sync for SharedSlice<'_, T> {}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: a copy on another thread reaches the same numbers through `get` and `get_mut`, under the same promises.
unsafe impl<T: Send + Sync> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub fn new(data: &'a mut [T]) -> Self {
        let len = data.len();
        // SAFETY: the slice is borrowed for 'a and from here on reached only through the cells, laid out as `T`.
        Self { data: unsafe { std::slice::from_raw_parts(data.as_mut_ptr().cast::<UnsafeCell<T>>(), len) } }
    }

    /// Part of it, shared likewise.
    pub fn part(self, range: Range<usize>) -> Self {
        Self { data: &self.data[range] }
    }

    /// All of it, for those who only read.
    pub fn read_only(self) -> ReadOnly<'a, T> {
        ReadOnly { data: self.data.as_ptr().cast::<T>(), len: self.data.len(), borrowed: PhantomData }
    }

    /// Part of the slice, to read.
    ///
    /// # Safety
    /// Nobody writes to the range while the result lives.
    pub unsafe fn get(self, range: Range<usize>) -> &'a [T] {
        let part = &self.data[range];
        // SAFETY: `part` lies inside the borrowed slice; nobody writes to it meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast::<T>(), part.len()) }
    }

    /// Part of the slice, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes the range while the result lives.
    pub unsafe fn get_mut(self, range: Range<usize>) -> &'a mut [T] {
        let part = &self.data[range];
        // SAFETY: `part` lies inside the borrowed slice; nobody else reaches it meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len()) }
    }
}

/// The readers' side of a [`SharedSlice`], or a slice that nobody writes to.
pub(super) struct ReadOnly<'a, T> {
    data: *const T,
    len: usize,
    borrowed: PhantomData<&'a [T]>,
}

impl<T> Clone for ReadOnly<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ReadOnly<'_, T> {}

// SAFETY: it is a borrowed slice, `&'a [T]`, that is read through `get` alone; callers of `get` keep writers away.
unsafe impl<T: Send + Sync> Sync for ReadOnly<'_, T> {}

// SAFETY: a copy on another thread reads the same numbers through `get`, under the same promise as above.
unsafe impl<T: Send + Sync> Send for ReadOnly<'_, T> {}

impl<'a, T> ReadOnly<'a, T> {
    /// A slice that nobody writes to for as long as it is borrowed.
    pub fn new(data: &'a [T]) -> Self {
        Self { data: data.as_ptr(), len: data.len(), borrowed: PhantomData }
    }

    /// Part of the slice.
    ///
    /// # Safety
    /// Nobody writes to the range while the result lives.
    #[inline(always)]
    pub unsafe fn get(self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: `data` and `len` are those of a slice borrowed for 'a (`new`, `SharedSlice::read_only`), the line
        // above keeps the range inside it, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.data.add(range.start), range.len()) }
    }
}
