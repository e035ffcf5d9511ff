// Package math has the tasks gsm8k and math: word problems from files, shown after few-shot examples and solved line by
// line or in one action. The reward is for the correct final answer.
//
// With the calculator on, the task computes every calculation that the model generates as <<expression=…>> and inserts the
// exact result.
package math
