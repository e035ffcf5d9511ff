// Package math has two tasks of worked mathematics, gsm8k and math: problems from files,
// shown after some worked examples, solved line by line or in one go, and paid for the
// right final answer.
//
// With the calculator on, the result of every calculation that the model writes as
// <<expression=…>> is worked out exactly and put in for it.
package math
