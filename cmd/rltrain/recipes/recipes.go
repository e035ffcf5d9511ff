// Package recipes holds the default settings of each task, one YAML file a task: every setting that the task
// has, in the order of the options' table.
package recipes

import _ "embed"

// Intent is the recipe of the intent task.
//
//go:embed intent.yaml
var Intent []byte

// Chat is the recipe of the chat task.
//
//go:embed chat.yaml
var Chat []byte

// SumDigits is the recipe of the sum_digits task.
//
//go:embed sum_digits.yaml
var SumDigits []byte

// ReverseDigits is the recipe of the reverse_digits task.
//
//go:embed reverse_digits.yaml
var ReverseDigits []byte

// GSM8K is the recipe of the gsm8k task.
//
//go:embed gsm8k.yaml
var GSM8K []byte

// MATH is the recipe of the math task.
//
//go:embed math.yaml
var MATH []byte

// Own is the recipe of a task called own, which stands for those that are no part of this program.
//
//go:embed own.yaml
var Own []byte
