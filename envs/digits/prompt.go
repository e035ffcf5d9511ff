package digits

import (
	"fmt"
	"strconv"
	"strings"

	"rltrain/envs/answer"
)

// Alphabet has every character of the short form and its worked solutions.
const Alphabet = "\n +,=0123456789[]AENRSWemrsuv"

const instruction = "You are a helpful assistant. Solve the task step by step, then give the final answer on a line of its own as " +
	answer.Tag + " <number>.\n\nExample:\n"

const (
	sumExample = "User: What is the total digit sum of [12, 345, 67]?\n" +
		"Assistant: 12: 1 + 2 = 3. 345: 3 + 4 + 5 = 12. 67: 6 + 7 = 13. In total 3 + 12 + 13 = 28.\n" + answer.Tag + " 28"
	reverseExample = "User: What is 1234 reversed?\n" +
		"Assistant: The digits are 1, 2, 3, 4. From the last to the first they are 4, 3, 2, 1.\n" + answer.Tag + " 4321"
)

func systemPrompt(task string) string {
	if task == Reverse {
		return instruction + reverseExample
	}
	return instruction + sumExample
}

func (e *Episode) question() string {
	if e.task == Reverse {
		return fmt.Sprintf("What is %d reversed?", e.numbers[0])
	}
	return fmt.Sprintf("What is the total digit sum of %s?", e.list())
}

// short is the exercise for a model over single characters.
func (e *Episode) short() string {
	if e.task == Reverse {
		return fmt.Sprintf("reverse %d\n", e.numbers[0])
	}
	return fmt.Sprintf("sum %s\n", e.list())
}

// Solution works the exercise out digit by digit, so that each piece follows from the
// one before it: for [12, 345] the running sum "+1=1 +2=3 +3=6 +4=10 +5=15", for 1230
// what is left beside what has been peeled off, "1230, 123,0 12,03 1,032 ,0321", from
// the whole number on, so that a digit is peeled off a number of any length. Then
// comes the answer behind [ANSWER].
func (e *Episode) Solution() string {
	var text strings.Builder
	if e.task == Reverse {
		left, peeled := strconv.Itoa(e.numbers[0]), ""
		fmt.Fprintf(&text, "%s, ", left)
		for left != "" {
			peeled += left[len(left)-1:]
			left = left[:len(left)-1]
			fmt.Fprintf(&text, "%s,%s ", left, peeled)
		}
	} else {
		sum := 0
		for _, n := range e.numbers {
			for _, digit := range strconv.Itoa(n) {
				sum += int(digit - '0')
				fmt.Fprintf(&text, "+%c=%d ", digit, sum)
			}
		}
	}
	return text.String() + answer.Tag + " " + strconv.FormatInt(e.Answer(), 10)
}
