// Package formula parses answers, in LaTeX or as typed text, into a small tree.
//
// [Parse] returns a [Node]: numbers, names, sums, products, powers, functions, tuples, sets, intervals, matrices, relations,
// lists, and quantities with units. What it cannot parse is an error, never a guess. [Readings] returns alternative readings
// of commas and dots in numbers.
//
// The tokens, nodes and levels per answer are bounded.
package formula
