package doctor

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/rltrain/rltrain/envs/sandbox"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

// describeSandbox shows which tiers of the sandbox work, why others do not, and which interpreters it found.
func describeSandbox(ctx context.Context, s *shared.Sheet) error {
	s.Head("Sandbox for programs")
	tiers := sandbox.Tiers()
	used := "none: programs run only with --unsafe-exec"
	if len(tiers) > 0 && tiers[0] != sandbox.Unsafe {
		used = string(tiers[0])
	}
	s.Row("tier", "%s", used)
	for _, f := range strongest(sandbox.Findings()) {
		if f.Err == nil {
			s.Row(string(f.Tier), "works: %s", f.How)
		} else {
			s.Row(string(f.Tier), "unavailable: %v (%s)", f.Err, f.How)
		}
	}
	if !slices.Contains(tiers, sandbox.Namespaces) {
		s.Row("to enable", "%s", lift())
	}
	box, err := sandbox.Open(false)
	if err != nil {
		return nil // already shown
	}
	for _, name := range sandbox.Languages {
		language, err := box.Find(ctx, name, "")
		absent := (*sandbox.Absent)(nil)
		switch {
		case errors.As(err, &absent):
			s.Row(name, "%v", err)
		case err != nil:
			return err
		default:
			s.Row(name, "%s", language.Interpreter)
		}
	}
	return nil
}

// strongest returns the first finding of each tier that works, or all of a tier's if none does.
func strongest(all []sandbox.Finding) (found []sandbox.Finding) {
	works := map[sandbox.Tier]bool{}
	for _, f := range all {
		if f.Err == nil && !works[f.Tier] {
			works[f.Tier] = true
			found = slices.DeleteFunc(found, func(other sandbox.Finding) bool { return other.Tier == f.Tier })
			found = append(found, f)
		} else if !works[f.Tier] {
			found = append(found, f)
		}
	}
	return found
}

// lift suggests how to enable namespaces.
func lift() string {
	for _, knob := range []struct{ file, bad, help string }{
		{"/proc/sys/user/max_user_namespaces", "0\n", "sysctl user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0\n", "sysctl kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if text, err := os.ReadFile(knob.file); err == nil && string(text) == knob.bad {
			return knob.help
		}
	}
	return "in a container, allow user namespaces (docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined) or pass --cap-add SYS_ADMIN"
}
