// Package version says which rltrain this is.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the program's own; run.json and the model card record it.
const Version = "0.1.0"

// stamp is the commit, with "+" after it if the sources had changes. The linker sets it for packages.
var stamp string

// Commit is the commit that this program was built from, and whether the sources had changes; "" if the build does not
// know it.
func Commit() (commit string, changed bool) {
	if stamp != "" {
		commit, changed = strings.CutSuffix(stamp, "+")
		return commit, changed
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			commit = setting.Value
		case "vcs.modified":
			changed = setting.Value == "true"
		}
	}
	return commit, changed
}
