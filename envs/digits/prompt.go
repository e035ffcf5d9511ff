package digits

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs/answer"
)

const instruction = "Solve the task step by step, then give the answer on a line of its own as " + answer.Tag + " <number>.\n\nExample:\n"

// The examples answer in the form of [Episode.Solution]. They are short, as every prompt has one.
const (
	sumExample = "What is the total digit sum of [12, 345]?\n" +
		"12: +1=1 +2=3. 345: +3=6 +4=10 +5=15.\n" + answer.Tag + " 15"
	reverseExample = "What is 1234 reversed?\n" +
		"1, 2, 3, 4 backwards is 4, 3, 2, 1.\n" + answer.Tag + " 4321"
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

// Solution is the demonstration. A demonstration with a slip has the same steps, but its answer omits the last digit added,
// or is not reversed.
func (e *Episode) Solution() string {
	switch {
	case e.options.Short && e.task == Reverse:
		return e.shortReverse()
	case e.options.Short:
		return e.shortSum()
	case e.task == Reverse:
		return e.plainReverse()
	}
	return e.plainSum()
}

// shortSum and shortReverse solve the problem for a character model, digit by digit. Each digit has a letter, so that a
// model looks digits up instead of counting positions.
//
//   - [12, 345]: each digit from the last to the first with the running sum, "a505b409c312d214e115".
//   - 1230: the digits forwards and backwards, "a1b2c3d0,d0c3b2a1".
//
// There are no separators: shorter texts are learned sooner and cost less. The answer follows after [ANSWER]. Reversed
// numbers and small sums keep leading zeros, 0321 and 09, so that one rule covers all.
//
// Sums start at the end of the list because a letter then gives a digit's distance from the end, whatever the list's
// length. From the front, policies learned one position after the other, and some missed the twelfth for long.
func (e *Episode) shortSum() string {
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

func (e *Episode) shortReverse() string {
	digits := []byte(strconv.Itoa(e.numbers[0]))
	var forwards, backwards []byte
	for i, digit := range digits {
		last := len(digits) - 1 - i
		forwards = append(forwards, letter(i), digit)
		backwards = append(backwards, letter(last), digits[last])
	}
	return fmt.Sprintf("%s,%s %s %s", forwards, backwards, answer.Tag, e.reversed())
}

// plainSum and plainReverse solve the problem in words, for a pretrained model. It splits long numbers into tokens of its
// own, so the digits are spelled out; each sum is carried to the next step, so that no step has more than one addition.
func (e *Episode) plainSum() string {
	var steps []string
	sum, before := 0, 0
	for _, n := range e.numbers {
		text := strconv.Itoa(n) + ":"
		for _, digit := range strconv.Itoa(n) {
			before = sum
			sum += int(digit - '0')
			text += fmt.Sprintf(" +%c=%d", digit, sum)
		}
		steps = append(steps, text+".")
	}
	if e.slips {
		sum = before
	}
	return fmt.Sprintf("%s\n%s %d", strings.Join(steps, " "), answer.Tag, sum)
}

func (e *Episode) plainReverse() string {
	forwards := strings.Split(strconv.Itoa(e.numbers[0]), "")
	backwards := slices.Clone(forwards)
	slices.Reverse(backwards)
	return fmt.Sprintf("%s backwards is %s.\n%s %s", strings.Join(forwards, ", "), strings.Join(backwards, ", "), answer.Tag, e.reversed())
}

// reversed is the answer to reverse_digits with its leading zeros, or with a slip the number itself.
func (e *Episode) reversed() []byte {
	digits := []byte(strconv.Itoa(e.numbers[0]))
	if !e.slips {
		slices.Reverse(digits)
	}
	return digits
}

// letter is the letter of digit i; it wraps around after z.
func letter(i int) byte { return 'a' + byte(i%26) }
