package registry_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/registry"
)

func TestRegistry(t *testing.T) {
	var r registry.Registry[int]
	add := func(name string, d int) {
		r.Add("test.Register", name, d, func(earlier map[string]int) error {
			if _, taken := earlier[name]; taken {
				return errors.New("the name is taken")
			}
			return nil
		})
	}
	add("beta", 2)
	add("alpha", 1)
	expect.Equal(t, []int{1, 2}, r.All())
	if d, err := r.Find("letter", "beta"); d != 2 || err != nil {
		t.Errorf("%d, %v", d, err)
	}
	_, err := r.Find("letter", "bta")
	expect.True(t, err != nil && err.Error() == `letter "bta" is unknown: choose alpha, beta; did you mean beta?`, "error %v", err)
	func() {
		defer func() {
			said, _ := recover().(string)
			expect.True(t, strings.Contains(said, "test.Register") && strings.Contains(said, "taken"), "panicked with %q", said)
		}()
		add("beta", 3)
	}()
	if d, _ := r.Find("letter", "beta"); d != 2 {
		t.Errorf("a refused definition replaced the first: %d", d)
	}
}
