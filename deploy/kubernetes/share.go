// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A share is what one allocation result gives a claim: a part of one pool. It has one lease while it is prepared, which is
// found again by its label alone:
//
//	k8s:OWNER:UID:SHARE:NAMESPACE.NAME
//
// OWNER is of cluster and node, UID the claim's, SHARE of the request, the pool and the share's id. The rest is for people, and
// cut where a label ends. Nothing is kept anywhere else, so there is nothing to lose.
type share struct {
	claim   types.NamespacedName
	uid     types.UID
	result  resourceapi.DeviceRequestAllocationResult
	bytes   uint64
	options parameters
}

const (
	labelBytesMax = 127
	memory        = "memory" // the capacity's name
)

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:4])
}

func ownerOf(cluster, node string) string { return shortHash(cluster, node) }

func shareHash(result *resourceapi.DeviceRequestAllocationResult) string {
	id := ""
	if result.ShareID != nil {
		id = string(*result.ShareID)
	}
	return shortHash(result.Request, result.Pool, result.Device, id)
}

func (s *share) label(owner string) string {
	label := fmt.Sprintf("k8s:%s:%s:%s:%s.%s", owner, s.uid, shareHash(&s.result), s.claim.Namespace, s.claim.Name)
	return strings.TrimRight(label[:min(len(label), labelBytesMax)], ".-:")
}

// key is the grant's idempotency key: the same for each try of this share.
func (s *share) key(owner string) (high, low uint64) {
	sum := sha256.Sum256([]byte(strings.Join([]string{"terrace.dev/grant", owner, string(s.uid), shareHash(&s.result)}, "\x00")))
	return binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
}

// labelParts is what a label says.
type labelParts struct{ owner, uid, share, claim string }

var labelPattern = regexp.MustCompile(`^k8s:([0-9a-f]{8}):([0-9A-Za-z-]{1,64}):([0-9a-f]{8}):(.*)$`)

func parseLabel(label string) (labelParts, bool) {
	found := labelPattern.FindStringSubmatch(label)
	if found == nil {
		return labelParts{}, false
	}
	return labelParts{found[1], found[2], found[3], found[4]}, true
}

// cdiName names a lease for container engines. It has the lease's id: a name is not used again for other memory.
func (p labelParts) cdiName(lease uint64) string {
	return fmt.Sprintf("k8s-%s-%s-%s-%d", p.owner, p.uid, p.share, lease)
}

// sharesOf reads what an allocation gives of this driver's devices.
func sharesOf(claim *resourceapi.ResourceClaim, driver string) ([]share, error) {
	var shares []share
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver {
			continue
		}
		options, err := parametersOf(claim.Status.Allocation.Devices.Config, driver, result.Request)
		if err != nil {
			return nil, err
		}
		bytes, err := consumed(&result, driver)
		if err != nil {
			return nil, err
		}
		if !saysMemory(claim, result.Request, driver) {
			return nil, fmt.Errorf("request %s does not say how much: add capacity: {requests: {memory: 16Gi}} to it", result.Request)
		}
		name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		shares = append(shares, share{claim: name, uid: claim.UID, result: result, bytes: bytes, options: options})
	}
	return shares, nil
}

func consumed(result *resourceapi.DeviceRequestAllocationResult, driver string) (uint64, error) {
	for _, name := range []resourceapi.QualifiedName{memory, resourceapi.QualifiedName(driver + "/" + memory)} {
		if quantity, told := result.ConsumedCapacity[name]; told {
			if bytes, whole := quantity.AsInt64(); whole && bytes > 0 {
				return uint64(bytes), nil
			}
			return 0, fmt.Errorf("request %s was allocated %s of %s, which is no number of bytes", result.Request, quantity.String(), memory)
		}
	}
	return 0, fmt.Errorf("request %s was allocated without a size: this cluster's scheduler needs the feature DRAConsumableCapacity "+
		"(on by default from Kubernetes 1.36 on)", result.Request)
}

// saysMemory is whether a request says its size. The API wants a default, which is one granule: nobody means that.
func saysMemory(claim *resourceapi.ResourceClaim, result, driver string) bool {
	says := func(capacity *resourceapi.CapacityRequirements) bool {
		if capacity == nil {
			return false
		}
		_, short := capacity.Requests[memory]
		_, full := capacity.Requests[resourceapi.QualifiedName(driver+"/"+memory)]
		return short || full
	}
	for _, request := range claim.Spec.Devices.Requests {
		if request.Exactly != nil && request.Name == result {
			return says(request.Exactly.Capacity)
		}
		for _, one := range request.FirstAvailable {
			if request.Name+"/"+one.Name == result {
				return says(one.Capacity)
			}
		}
	}
	return false
}
