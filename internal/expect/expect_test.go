package expect

import (
	"errors"
	"testing"
)

func TestNames(t *testing.T) {
	err := errors.New(`a.csv:3: column "x": got 1, want text`)
	for want, ok := range map[string]bool{
		"a.csv:3": true, `:3 … "x" … 1`: true, `"x" … :3`: false, `"y"`: false, "": true,
	} {
		if Names(err, want) != ok {
			t.Errorf("Names(%q) is %t", want, !ok)
		}
	}
	if Names(nil, "") {
		t.Error("nil has text")
	}
}
