// Package ball computes with real and complex numbers that carry an error bound. A [Real] is a midpoint and a radius: the
// exact number lies between midpoint − radius and midpoint + radius, whatever was rounded. Two disjoint balls prove that
// two numbers differ.
//
// A [Context] sets the precision. A result without a value (division by a ball that contains zero, logarithm of zero,
// overflow) is not [Real.Valid], and neither is anything computed from it.
package ball
