package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/app"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestSandboxCommand(t *testing.T) {
	if tiers := sandbox.Tiers(); len(tiers) == 0 || tiers[0] == sandbox.Unsafe {
		t.Skip("no sandbox works here")
	}
	for _, test := range []struct {
		program, options string
		want             sandbox.Status
		out              string
	}{
		{"print(6 * 7)", "", sandbox.OK, "42\n"},
		{"while True: pass", "--timeout 0.3", sandbox.Timeout, ""},
		{"x = bytearray(3 << 30)", "", sandbox.Memory, ""},
		{"raise SystemExit(3)", "", sandbox.Failed, ""},
	} {
		var out, errors strings.Builder
		args := append([]string{"rltrain", "sandbox"}, strings.Fields(test.options)...)
		if code := app.Run(t.Context(), args, nil, strings.NewReader(test.program), &out, &errors); code != 0 {
			if strings.Contains(errors.String(), "no interpreter") {
				t.Skip(errors.String())
			}
			t.Fatalf("%s: exit code %d: %s", test.program, code, errors.String())
		}
		var o sandbox.Outcome
		err := json.Unmarshal([]byte(out.String()), &o)
		expect.Require(t, err == nil && strings.Count(out.String(), "\n") == 1, "%s: %q, %v", test.program, out.String(), err)
		expect.True(t, o.Status == test.want && o.Stdout == test.out && o.Tier == sandbox.Tiers()[0], "%s: %+v", test.program, o)
	}
	for options, want := range map[string]string{
		"--timeout 0": "--timeout: 0 is out of range", "--memory-mb 1": "--memory-mb: 1", "--language cobol": `unknown language "cobol"`,
		"--tier unsafe": "pass --unsafe-exec", "--tier moon": `unknown tier "moon"`, "--interpreter /nowhere": "no interpreter for python",
		"--stdin /nowhere": "--stdin: open /nowhere", "more": "",
	} {
		var out, errors strings.Builder
		args := append([]string{"rltrain", "sandbox"}, strings.Fields(options)...)
		code := app.Run(t.Context(), args, nil, strings.NewReader(""), &out, &errors)
		expect.True(t, code != 0 && strings.Contains(errors.String(), want), "%s: exit code %d, %q", options, code, errors.String())
	}
}
