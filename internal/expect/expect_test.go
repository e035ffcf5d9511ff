package expect_test

import (
	"errors"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestNames(t *testing.T) {
	err := errors.New(`a.csv:3: column "x": got 1, want text`)
	for want, ok := range map[string]bool{
		"a.csv:3": true, `:3 … "x" … 1`: true, `"x" … :3`: false, `"y"`: false, "": true,
	} {
		expect.True(t, expect.Names(err, want) == ok, "Names(%q) is %t", want, !ok)
	}
	expect.True(t, !expect.Names(nil, ""), "nil has text")
}
