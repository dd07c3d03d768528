// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func result(request, pool, id string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: "terrace.dev", Pool: pool, Device: "memory", ShareID: ptr.To(types.UID(id))}
}

func TestLabelsAreReadAgain(t *testing.T) {
	name := types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", 253)}
	one := share{claim: name, uid: "0b5ef2ad-3d28-4a4f-8d5e-2b8b7b4f9d11", result: result("mem", "node/main", "s1")}
	owner := ownerOf("cluster", "node")
	label := one.label(owner)
	if len(label) > labelBytesMax {
		t.Fatalf("%d bytes", len(label))
	}
	parts, ours := parseLabel(label)
	if !ours || parts.owner != owner || parts.uid != string(one.uid) || parts.share != shareHash(&one.result) {
		t.Fatalf("%+v of %s", parts, label)
	}
	for _, other := range []string{"", "redis", "k8s:", "k8s:0000000:uid:00000000:a.b", "slurm-1.0-node"} {
		if _, ours := parseLabel(other); ours {
			t.Errorf("%q is none of ours", other)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := map[[2]uint64]string{}
	for _, owner := range []string{"00000001", "00000002"} {
		for _, uid := range []types.UID{"uid-1", "uid-2"} {
			for _, one := range []resourceapi.DeviceRequestAllocationResult{result("a", "n/p", "1"), result("a", "n/p", "2"), result("b", "n/p", "1"), result("a", "n/q", "1")} {
				part := share{uid: uid, result: one}
				high, low := part.key(owner)
				what := owner + string(uid) + one.Request + one.Pool + string(*one.ShareID)
				if other, again := seen[[2]uint64{high, low}]; again {
					t.Errorf("%s and %s have one key", other, what)
				}
				seen[[2]uint64{high, low}] = what
				if h, l := part.key(owner); h != high || l != low {
					t.Errorf("%s has two keys", what)
				}
			}
		}
	}
}

func config(source resourceapi.AllocationConfigSource, requests []string, text string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "terrace.dev", Parameters: runtime.RawExtension{
			Raw: []byte(`{"apiVersion": "terrace.dev/v1", "kind": "LeaseParameters"` + text + `}`)}}}}
}

func TestParametersOfClassAndClaim(t *testing.T) {
	all := []resourceapi.DeviceAllocationConfiguration{
		config(resourceapi.AllocationConfigSourceClaim, []string{"a"}, `, "mode": "shared_read_only", "readOnly": true`),
		config(resourceapi.AllocationConfigSourceClass, nil, `, "mode": "shared_coherent", "ttl": "30m"`),
		config(resourceapi.AllocationConfigSourceClaim, []string{"b"}, `, "path": "/b"`),
	}
	for request, want := range map[string]parameters{
		"a":     {Mode: "shared_read_only", TTL: "30m", ReadOnly: true},
		"b/sub": {Mode: "shared_coherent", TTL: "30m", Path: "/b"},
		"c":     {Mode: "shared_coherent", TTL: "30m"},
	} {
		got, err := parametersOf(all, "terrace.dev", request)
		if err != nil || got.Mode != want.Mode || got.TTL != want.TTL || got.Path != want.Path || got.ReadOnly != want.ReadOnly || got.ttl.Minutes() != 30 {
			t.Errorf("%s: %+v %v", request, got, err)
		}
	}
	if got, err := parametersOf(nil, "terrace.dev", "a"); err != nil || got.Mode != "exclusive" {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := readParameters([]byte(`{"apiVersion": "terrace.dev/v2", "kind": "LeaseParameters"}`)); err == nil || !strings.Contains(err.Error(), "terrace.dev/v1") {
		t.Errorf("%v", err)
	}
}

func TestPathsOfRequests(t *testing.T) {
	shares := []share{{result: result("a", "n/p", "1")}, {result: result("b/x", "n/p", "2")}, {result: result("c", "n/p", "3")}, {result: result("c", "n/p", "4")}}
	if err := choosePaths(shares); err != nil {
		t.Fatal(err)
	}
	if shares[0].options.Path != "/run/terrace-lease/a" || shares[1].options.Path != "/run/terrace-lease/b" || shares[2].options.Path == shares[3].options.Path {
		t.Fatalf("%+v", shares)
	}
	shares[1].options.Path = shares[0].options.Path
	if err := choosePaths(shares); err == nil || !strings.Contains(err.Error(), "requests a and b/x") {
		t.Fatal(err)
	}
}

func TestWhatIsOffered(t *testing.T) {
	pool := terracePool{Name: "p", CapacityBytes: 1000, GrantableBytes: 500, ScrubbingBytes: 105, GranuleBytes: 10}
	label := "k8s:00000000:uid:00000000:a.b"
	seen := &snapshot{
		Leases: []terraceLease{{Pool: "p", Bytes: 100, Phase: "active", Label: label}, {Pool: "p", Bytes: 50, Phase: "fencing", Label: label},
			{Pool: "p", Bytes: 60, Phase: "active", Label: "k8s:00000001:uid:00000000:a.b"}, {Pool: "q", Bytes: 70, Phase: "active", Label: label}},
		Reservations: []terraceReservation{{Pool: "p", Tenant: "other", Bytes: 90, UsedBytes: 40}, {Pool: "p", Tenant: "other", Bytes: 10, UsedBytes: 40},
			{Pool: "p", Tenant: "kubernetes", Bytes: 300}},
	}
	// 500 free, 105 soon, 100 ours; 50 kept for others.
	if got := offered(&pool, seen, "00000000", "kubernetes"); got != 650 {
		t.Errorf("%d", got)
	}
	pool.CapacityBytes = 300
	if got := offered(&pool, seen, "00000000", "kubernetes"); got != 300 {
		t.Errorf("%d", got)
	}
}

func TestPolicyOfSmallPools(t *testing.T) {
	for _, one := range []struct{ granule, bytes uint64 }{{2, 2}, {2, 4}, {2, 100}, {1 << 30, 1 << 29}} {
		policy := policyOf(one.granule, one.bytes)
		least := policy.ValidRange.Min.Value()
		if least <= 0 || uint64(least) > one.bytes || policy.Default.Cmp(*policy.ValidRange.Min) != 0 {
			t.Errorf("%+v: %+v", one, policy)
		}
		if step := policy.ValidRange.Step; step != nil && uint64(least+step.Value()) > one.bytes {
			t.Errorf("%+v: step %v", one, step)
		}
	}
}

func TestNamesOfPools(t *testing.T) {
	if got := poolName("node-a", "main"); got != "node-a/main" {
		t.Error(got)
	}
	one, other := poolName("n", "Main_1"), poolName("n", "main_1")
	if one == other || !strings.HasPrefix(one, "n/pool-") {
		t.Error(one, other)
	}
}
