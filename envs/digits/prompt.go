package digits

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs/answer"
)

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

// short is the prompt for a character model.
func (e *Episode) short() string {
	if e.task == Reverse {
		return fmt.Sprintf("reverse %d\n", e.numbers[0])
	}
	return fmt.Sprintf("sum %s\n", e.list())
}

// Solution is the demonstration: it solves the problem digit by digit and gives each digit a letter, so that a model looks
// digits up instead of counting positions.
//
//   - [12, 345]: each digit from the last to the first with the running sum, "a505b409c312d214e115".
//   - 1230: the digits forwards and backwards, "a1b2c3d0,d0c3b2a1".
//
// There are no separators: shorter texts are learned sooner and cost less. The answer follows after [ANSWER]. Reversed
// numbers and small sums keep leading zeros, 0321 and 09, so that one rule covers all.
//
// Sums start at the end of the list because a letter then gives a digit's distance from the end, whatever the list's
// length. From the front, policies learned one position after the other, and some missed the twelfth for long.
//
// A demonstration with a slip uses the same steps, but its answer omits the last digit of the sum or is not reversed.
func (e *Episode) Solution() string {
	if e.task == Reverse {
		digits := []byte(strconv.Itoa(e.numbers[0]))
		var forwards, backwards, plain []byte
		for i, digit := range digits {
			last := len(digits) - 1 - i
			forwards = append(forwards, letter(i), digit)
			backwards = append(backwards, letter(last), digits[last])
			plain = append(plain, digits[last])
		}
		if e.slips {
			plain = digits
		}
		return fmt.Sprintf("%s,%s %s %s", forwards, backwards, answer.Tag, plain)
	}
	var text strings.Builder
	sum, before, at := 0, 0, 0
	for _, n := range slices.Backward(e.numbers) {
		for ; n > 0; n /= 10 {
			before = sum
			sum += n % 10
			fmt.Fprintf(&text, "%c%d%02d", letter(at), n%10, sum)
			at++
		}
	}
	if e.slips {
		sum = before
	}
	return fmt.Sprintf("%s %s %02d", text.String(), answer.Tag, sum)
}

// letter is the letter of digit i; it wraps around after z.
func letter(i int) byte { return 'a' + byte(i%26) }
