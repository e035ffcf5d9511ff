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

// short is the exercise for a model over single characters.
func (e *Episode) short() string {
	if e.task == Reverse {
		return fmt.Sprintf("reverse %d\n", e.numbers[0])
	}
	return fmt.Sprintf("sum %s\n", e.list())
}

// Solution works the exercise out digit by digit, with a letter for each digit, so that
// a model looks up the digit of a letter rather than count positions: for [12, 345] each
// digit from the last to the first with the sum so far, "a505b409c312d214e115", for 1230
// the digits forwards and backwards, "a1b2c3d0,d0c3b2a1". Nothing stands between them: the
// fewer characters, the sooner they are learnt, and the cheaper are answers. Then comes the
// answer behind [ANSWER], as it stands before: reversed numbers and small sums keep the
// zeros in front, 0321 and 09, so that one rule serves for all.
//
// Sums begin at the end of the list because a letter then says how far back its digit stands,
// in short lists and in long ones. From the front that depends on the list's length: policies
// learnt one place after the other, and some were far from the twelfth when others had it.
//
// A solution that slips is worked out in the same way, but its answer leaves the last digit out of the sum, or is not
// reversed.
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

// letter is that of digit i: from z on it starts over.
func letter(i int) byte { return 'a' + byte(i%26) }
