// Package equiv says whether two answers of mathematics mean the same.
//
// [Compare] reads both as package formula does and compares them by the first rule that
// fits: numbers exactly, decimals to the precision that is written, units, names with
// values, lists and sets in any order, tuples and matrices entry by entry, sets of real
// numbers as unions of intervals, equations up to a factor, expressions by a normal form
// or, where there is none, by their values at fixed points, in arithmetic that knows its
// own error. What cannot be read is compared as text. Where it is in doubt the answer is
// that they differ.
//
// The work for one pair of answers is bounded whatever is written in them.
package equiv
