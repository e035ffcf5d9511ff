package doctor

import "testing"

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Tue Aug 12 18:02:09 UTC 2025\nGCC version:  gcc version 12.2.0\n":           "580.65.06",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)  Wed Feb 26 02:11:30 UTC 2025\n": "570.124.06",
		"": "",
	} {
		if got := driverVersion(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
