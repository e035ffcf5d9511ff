// Package ball computes with real and complex numbers that carry a bound of their own
// error. A [Real] is a midpoint and a radius: the number that is meant lies between
// midpoint − radius and midpoint + radius, whatever was rounded on the way. Two balls
// that do not meet are two different numbers; that is a proof.
//
// A [Context] holds the precision. What has no value (a division by a ball around zero,
// the logarithm of zero, a number too large) is not [Real.Valid], and so is all that is
// computed from it.
package ball
