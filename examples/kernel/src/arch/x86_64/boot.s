// From the PVH entry (32 bits, no paging, ebx: start info) to Rust in the upper half; and from a start-up IPI to the same.
// Boot tables: all of the first 512 GiB in 1 GiB pages, at 0 (needed to get here), at the direct map, and the kernel at
// the top.

.section .note.Xen, "a"
    .balign 4
    .long 4, 4, 18              // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_start

.section .boot, "awx", @progbits
    .balign 4096
.globl boot_pml4
boot_pml4:
    .skip 4096
boot_pdpt:
    .skip 4096
boot_pdpt_high:
    .skip 4096
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff    // 8: 64-bit code
    .quad 0x00cf92000000ffff    // 16: data
    .quad 0x00cf9a000000ffff    // 24: 32-bit code
boot_gdt_end:
boot_gdt_ptr:
    .word boot_gdt_end - boot_gdt - 1
    .quad boot_gdt

.code32
.globl pvh_start
pvh_start:
    cld
    cli
    movl %ebx, %edi
    movl $boot_pdpt, %eax
    xorl %ecx, %ecx
1:  movl %ecx, %edx
    shll $30, %edx
    orl $0x83, %edx             // present, writable, 1 GiB
    movl %edx, (%eax,%ecx,8)
    movl %ecx, %edx
    shrl $2, %edx
    movl %edx, 4(%eax,%ecx,8)
    incl %ecx
    cmpl $512, %ecx
    jne 1b
    movl $boot_pdpt + 3, %eax
    movl %eax, boot_pml4
    movl %eax, boot_pml4 + 256 * 8
    movl $boot_pdpt_high + 3, %eax
    movl %eax, boot_pml4 + 511 * 8
    movl $0x83, boot_pdpt_high + 510 * 8
    xorl %esi, %esi             // the first CPU

enter_long_mode:                // esi: whether this is a further CPU
    movl %cr4, %eax
    orl $0xa0, %eax             // PAE, PGE
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      // EFER
    rdmsr
    orl $0x900, %eax            // LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax      // caches on
    orl $0x80010001, %eax       // PG, WP, PE
    movl %eax, %cr0
    lgdt boot_gdt_ptr
    ljmp $8, $long_mode

.code64
long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movabsq $high_start, %rax
    jmp *%rax

// Copied to 0x8000, where further CPUs start in real mode.
.code16
.globl ap_trampoline
ap_trampoline:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl ap_gdt_ptr - ap_trampoline + 0x8000
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $24, $(ap_protected - ap_trampoline + 0x8000)
.code32
ap_protected:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $1, %esi
    movl $enter_long_mode, %eax
    jmp *%eax
    .balign 4
ap_gdt_ptr:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
.globl ap_trampoline_end
ap_trampoline_end:

.code64
.section .text
high_start:
    lgdt high_gdt_ptr(%rip)     // spaces do not have the boot code's addresses
    testl %esi, %esi
    jnz 1f
    leaq boot_stack_top(%rip), %rsp
    movl %edi, %edi
    xorl %ebp, %ebp
    call first_cpu
    ud2
1:  movq ap_stack_top(%rip), %rsp
    xorl %ebp, %ebp
    call further_cpu
    ud2

.section .rodata
high_gdt_ptr:
    .word boot_gdt_end - boot_gdt - 1
    .quad boot_gdt + 0xffff800000000000

.section .bss
    .balign 16
    .skip 65536
boot_stack_top:

// Entries of interrupts 0 to 79, 16 bytes each: they push a zero where the processor pushes no error code, then the number.
.section .text
    .balign 16
.globl interrupt_entries
interrupt_entries:
.set vector, 0
.rept 80
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    pushq $0
    .endif
    pushq $vector
    jmp interrupt_common
    .set vector, vector + 1
.endr

interrupt_common:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    movq %rsp, %rdi
    movq %rsp, %rbx
    andq $-16, %rsp
    call interrupt
    movq %rbx, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq
